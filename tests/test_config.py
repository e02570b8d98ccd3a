"""The settings of the process."""

import logging
import threading

import pytest
import torch

import thunder_fx
from tests.helpers import sine
from thunder_fx._config import Config


@pytest.mark.parametrize(("text", "value"), [("1", True), ("ON", True), ("0", False), ("", False), ("no", False)])
def test_environment_is_read(text, value):
    """THUNDER_FX_VERBOSE takes the usual words."""
    assert Config({"THUNDER_FX_VERBOSE": text}).verbose is value
    assert Config({}).verbose is False


def test_wrong_environment_names_the_variable_and_what_it_takes():
    """A typo in the environment is an error with the allowed words, and not a default."""
    with pytest.raises(thunder_fx.ThunderFXError, match=r"THUNDER_FX_VERBOSE .*true.*found 'maybe'") as caught:
        Config({"THUNDER_FX_VERBOSE": "maybe"})
    assert isinstance(caught.value, ValueError)


def test_patch_holds_inside_and_only_there():
    """A patch ends with its block, nests, and is taken back after an exception."""
    config = thunder_fx.config
    with config.patch(verbose=True):
        assert config.verbose is True
        with config.patch(verbose=False):
            assert config.verbose is False
        assert config.verbose is True
    with pytest.raises(KeyError), config.patch(verbose=True):
        raise KeyError
    assert config.verbose is False


def test_patch_is_of_its_thread():
    """What one thread patches, another does not see."""
    seen = []
    with thunder_fx.config.patch(verbose=True):
        thread = threading.Thread(target=lambda: seen.append(thunder_fx.config.verbose))
        thread.start()
        thread.join()
    assert seen == [False]


def test_words_and_counts_are_checked():
    """A word that a setting does not take, and a size that is none."""
    with pytest.raises(thunder_fx.ConfigError, match="capture_inputs takes one of 'off', 'values'; found 'all'"):
        thunder_fx.config.capture_inputs = "all"
    for wrong in (-1, True, "many", 2.5):
        with pytest.raises(thunder_fx.ConfigError, match="capture_limit takes a whole number from 0"):
            thunder_fx.config.capture_limit = wrong
    assert Config({"THUNDER_FX_CAPTURE_LIMIT": "3", "THUNDER_FX_CAPTURE_INPUTS": "Values"}).capture_limit == 3


def test_unknown_setting_and_wrong_value_change_nothing():
    """Both are errors that say what there is."""
    config = thunder_fx.config
    with pytest.raises(AttributeError, match="it has: verbose"), config.patch(verbos=True):
        pass
    with pytest.raises(thunder_fx.ConfigError, match="verbose takes True or False"), config.patch(verbose=3):
        pass
    with pytest.raises(AttributeError, match="no setting 'verbos'"):
        config.verbos = True
    with pytest.raises(thunder_fx.ConfigError):
        config.verbose = "loud"
    assert repr(config) == "config(verbose=False, capture_inputs='off', capture_limit=256, repro_dir=None)"
    assert "verbose" in dir(config)


def test_verbose_logs_each_graph_and_region(caplog):
    """With verbose on, the logger thunder_fx tells graph, regions and seconds; off, nothing."""
    caplog.set_level(logging.INFO, logger="thunder_fx")
    thunder_fx.thunderfx(sine)(torch.ones(3))
    assert not caplog.records
    torch._dynamo.reset()
    with thunder_fx.config.patch(verbose=True):
        thunder_fx.thunderfx(sine)(torch.ones(3))
    region, graph, first_call = (record.getMessage() for record in caplog.records)
    assert "thunder_0, 2 operators" in region
    assert "sine" in graph
    assert "thunder_0" in graph
    # thunder compiles when a region first runs.
    assert "thunder_0, first call for these sizes" in first_call
