"""The programs, one file for each field. They are plain PyTorch, or models of libraries, and know no compiler."""
