"""The networks as torch modules: the definitions that training uses, and that tests compare the runtime with."""
