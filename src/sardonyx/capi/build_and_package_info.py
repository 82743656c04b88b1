"""The name and version of the onnxruntime package that this one replaces."""

from sardonyx.session.environment import API_VERSION

package_name = "onnxruntime"
__version__ = API_VERSION
