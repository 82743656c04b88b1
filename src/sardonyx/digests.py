"""The digest of cache keys and entries: BLAKE2, without hashlib, which loads OpenSSL: 3 ms of every start."""

try:
    from _blake2 import blake2b
except ImportError:  # another Python than CPython
    from hashlib import blake2b

__all__ = ["blake2b", "hexdigest"]


def hexdigest(content: bytes) -> str:
    """The digest of bytes as 64 hexadecimal digits."""
    return blake2b(content, digest_size=32).hexdigest()
