"""The whole daemon on a virtual clock, between a model of the workflow server and a faulty disk, driven by one seed."""
