"""Methods with personal models or parts of models; one file each."""
