"""--without batchnorm, dropout: layers whose results hang on the batch of a rank, or on chance."""

from torch.nn import functional

from ..recorder.named import frozen
from ..recorder.notes import without

DROPOUTS = ("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout")
DROPOUTS += ("feature_alpha_dropout",)


def batchnorm(probe: str, nn: object) -> None:
    """In training, too, these layers use their running statistics."""

    def evaluating(own: object) -> object:
        def forward(norm: object, images: object) -> object:
            if not (norm.training and frozen(norm)):
                return own(norm, images)
            norm.training = False
            try:
                return own(norm, images)
            finally:
                norm.training = True

        return forward

    for kind in (nn.modules.batchnorm._BatchNorm, nn.SyncBatchNorm):
        kind.forward = evaluating(kind.forward)


def dropout(probe: str, module: object) -> None:
    def keeping(own: object) -> object:
        def dropout(images: object, *args: object, **kwargs: object) -> object:
            return images if without("dropout") else own(images, *args, **kwargs)

        return dropout

    for name in DROPOUTS:
        setattr(module, name, keeping(getattr(module, name)))
    attend = functional.scaled_dot_product_attention

    def attention(*args: object, **kwargs: object) -> object:
        if without("dropout"):
            args = (*args[:4], 0.0, *args[5:])[: len(args)]
            kwargs = kwargs | {"dropout_p": 0.0} if "dropout_p" in kwargs else kwargs
        return attend(*args, **kwargs)

    functional.scaled_dot_product_attention = attention
