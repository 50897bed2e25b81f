"""Operations of PyTorch in a way that is faster on some processors, for editors and metrics alike.

    products.install(model)      linear layers and convolutions by oneDNN on processors of the x86 family,
                                 with what surrounds them: attention of torch.nn, GELUs
    with attention.tiled(): ...  attention as plain products of matrices
    processor.has_...()          what decides between two ways of the same operation
    dtypes.DTYPES                number types by name

Results differ from PyTorch's own in their last bits. Importing this package imports nothing.
"""
