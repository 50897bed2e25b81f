"""Operations of PyTorch in a way that is faster on some processors, for editors and metrics alike.

    products.install(model)      linear layers by oneDNN: float32, processors of the x86 family; with what
                                 surrounds them: attention of torch.nn, GELUs
    with attention.tiled(): ...  attention as plain products of matrices: bfloat16, CPUs
    dtypes.DTYPES                number types by name

Results differ from PyTorch's own in their last bits. Importing this package imports nothing.
"""
