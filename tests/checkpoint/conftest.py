from memory_folder import tmp_path as tmp_path
