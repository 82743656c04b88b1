"""The package that this one stands in for."""

from sardonyx.session.environment import API_VERSION

package_name = "onnxruntime"
__version__ = API_VERSION
