"""Calibration: ranges of tensors from data. ``onnxruntime.quantization.calibrate``'s names."""

from sardonyx.quantization.calibrate.cache import CalibrationCacheEncoder as CalibrationCacheEncoder
from sardonyx.quantization.calibrate.cache import load_tensors_data as load_tensors_data
from sardonyx.quantization.calibrate.cache import save_tensors_data as save_tensors_data
from sardonyx.quantization.calibrate.calibraters import CalibraterBase as CalibraterBase
from sardonyx.quantization.calibrate.calibraters import DistributionCalibrater as DistributionCalibrater
from sardonyx.quantization.calibrate.calibraters import EntropyCalibrater as EntropyCalibrater
from sardonyx.quantization.calibrate.calibraters import HistogramCalibrater as HistogramCalibrater
from sardonyx.quantization.calibrate.calibraters import MinMaxCalibrater as MinMaxCalibrater
from sardonyx.quantization.calibrate.calibraters import PercentileCalibrater as PercentileCalibrater
from sardonyx.quantization.calibrate.calibraters import create_calibrator as create_calibrator
from sardonyx.quantization.calibrate.collectors import CalibrationDataCollector as CalibrationDataCollector
from sardonyx.quantization.calibrate.collectors import HistogramCollector as HistogramCollector
from sardonyx.quantization.calibrate.methods import entropy as entropy
from sardonyx.quantization.calibrate.methods import rel_entr as rel_entr
from sardonyx.quantization.calibrate.tensors import TensorData as TensorData
from sardonyx.quantization.calibrate.tensors import TensorsData as TensorsData
from sardonyx.quantization.companions import companions
from sardonyx.quantization.data import CalibrationDataReader as CalibrationDataReader
from sardonyx.quantization.kinds import CalibrationMethod as CalibrationMethod

__getattr__ = companions(__name__)
