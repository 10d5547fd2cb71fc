"""One module a toolchain: sources to libraries in child processes, kept in one artefact store."""
