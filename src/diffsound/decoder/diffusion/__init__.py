"""Discrete diffusion (section IV) as pure functions over index tensors; knows only torch.

Equation numbers are those of the paper's LaTeX source, where section IV has eq. 5 to 26.
"""

from diffsound.decoder.diffusion.draws import (
    Generators,
    draw_categorical,
    filter_logits,
    guide,
    gumbel,
    truncation_mask,
    uniforms,
)
from diffsound.decoder.diffusion.loss import (
    ImportanceSampler,
    LossTerms,
    diffusion_loss,
    prior_kl,
    simplified_loss,
)
from diffsound.decoder.diffusion.official import (
    official_log_x0,
    official_posterior,
    official_schedule,
    official_timesteps,
)
from diffsound.decoder.diffusion.process import (
    log_reverse_probs,
    posterior,
    q_xt_given_x0,
    q_xt_given_xs,
    reverse_probs,
    sample_stationary,
    sample_xt,
)
from diffsound.decoder.diffusion.samplers import (
    Predict,
    ancestral,
    confidence,
    mask_share,
    official,
    timesteps_for,
)
from diffsound.decoder.diffusion.schedule import (
    Coefficients,
    Schedule,
    Transition,
    cosine_schedule,
    linear_schedule,
    quarter_schedule,
)

__all__ = [
    "Coefficients",
    "Generators",
    "ImportanceSampler",
    "LossTerms",
    "Predict",
    "Schedule",
    "Transition",
    "ancestral",
    "confidence",
    "cosine_schedule",
    "diffusion_loss",
    "draw_categorical",
    "filter_logits",
    "guide",
    "gumbel",
    "linear_schedule",
    "log_reverse_probs",
    "mask_share",
    "official",
    "official_log_x0",
    "official_posterior",
    "official_schedule",
    "official_timesteps",
    "posterior",
    "prior_kl",
    "q_xt_given_x0",
    "q_xt_given_xs",
    "quarter_schedule",
    "reverse_probs",
    "sample_stationary",
    "sample_xt",
    "simplified_loss",
    "timesteps_for",
    "truncation_mask",
    "uniforms",
]
