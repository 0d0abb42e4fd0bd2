"""Convert GGUF files to OpenVINO folders; imported only when a file is converted (extra `local`)."""
