"""The method of the paper: fusion, quantizer, decoder, and the model made of them."""
