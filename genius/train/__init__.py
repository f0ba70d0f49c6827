"""Training in three stages (encoder heads, quantizer, decoder), each one readable file, and the loop they share."""
