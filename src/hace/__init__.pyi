# The public names of hace, each listed once: type checkers read this file, and so does __init__.py, to load each name's
# module when the name is first used. A new loss is listed in hace/losses/registry.py alone.

from hace import anndata as anndata
from hace import data as data
from hace import decisions as decisions
from hace import draw as draw
from hace import environment as environment
from hace import errors as errors
from hace import formats as formats
from hace import hierarchy as hierarchy
from hace import linear as linear
from hace import losses as losses
from hace import metrics as metrics
from hace.data import DATASETS as DATASETS
from hace.data import Dataset as Dataset
from hace.data import Samples as Samples
from hace.data import load_dataset as load_dataset
from hace.decisions import fit_temperature as fit_temperature
from hace.decisions import guaranteed_threshold as guaranteed_threshold
from hace.decisions import predict as predict
from hace.decisions.calibration import calibrate_scores as calibrate_scores
from hace.draw import draw_hierarchy as draw_hierarchy
from hace.environment import show_config as show_config
from hace.errors import ConfigError as ConfigError
from hace.errors import DataError as DataError
from hace.errors import FormatError as FormatError
from hace.errors import HaceError as HaceError
from hace.errors import HierarchyError as HierarchyError
from hace.formats import cifar100_hierarchy as cifar100_hierarchy
from hace.formats import fgvc_hierarchy as fgvc_hierarchy
from hace.formats import nabirds_hierarchy as nabirds_hierarchy
from hace.formats import read_hierarchy as read_hierarchy
from hace.formats import write_hierarchy as write_hierarchy
from hace.formats.score_files import read_mapping as read_mapping
from hace.hierarchy import Hierarchy as Hierarchy
from hace.hierarchy.derived import reachability_matrix as reachability_matrix
from hace.lab.features.backbones import load_backbone as load_backbone
from hace.lab.features.extraction import extract as extract
from hace.lab.features.store import FeatureStore as FeatureStore
from hace.lab.probe import probe as probe
from hace.lab.report.evaluation_page import write_evaluation as write_evaluation
from hace.lab.report.study_report import write_report as write_report
from hace.lab.runs.config import DataConfig as DataConfig
from hace.lab.runs.config import LossConfig as LossConfig
from hace.lab.runs.config import ProbeConfig as ProbeConfig
from hace.lab.runs.config import RunConfig as RunConfig
from hace.lab.runs.config import TrainConfig as TrainConfig
from hace.lab.runs.run import read_run as read_run
from hace.lab.serve.export import export_run as export_run
from hace.lab.serve.load_run import calibrate_run as calibrate_run
from hace.lab.serve.load_run import load_trained as load_trained
from hace.lab.serve.load_run import rescored as rescored
from hace.lab.serve.predictor import Predictor as Predictor
from hace.lab.serve.predictor import Question as Question
from hace.lab.train.train import plot_log as plot_log
from hace.lab.train.train import train as train
from hace.linear.estimator import HACEClassifier as HACEClassifier
from hace.losses.head import leaf_logits as leaf_logits
from hace.losses.head import node_log_probs as node_log_probs
from hace.losses.registry import *  # noqa: F403  (the class of every loss)
from hace.losses.registry import LOSSES as LOSSES
from hace.losses.registry import build_loss as build_loss
from hace.metrics import compare as compare
from hace.metrics import evaluate as evaluate
from hace.study import Study as Study

__version__: str
