"""Why a quantized model is wrong: ``debug`` names the first layer at fault, the cause and the change.

``layers`` reads both models as lists of layers, ``grids`` the scales and zero points in them; ``match`` finds which
tensors of the two models are the same; ``measure`` runs both on data; ``weights``, ``activations`` and ``saturation``
look for causes; ``report`` is the result.
"""
