import time

IMPORTED_AT = time.time()  # source files that changed later may not be what this process runs
