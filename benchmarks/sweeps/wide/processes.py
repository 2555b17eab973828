"""Gaussian processes of gpytorch and differential equations of torchdiffeq."""

from __future__ import annotations

from typing import Any

import torch

from .family import Built, family


class _Regression(torch.nn.Module):
    """The negative likelihood in training, the predicted mean and variance otherwise."""

    def __init__(self, model: Any, likelihood: Any, marginal: Any) -> None:
        super().__init__()
        self.model, self.likelihood, self.marginal = model, likelihood, marginal

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
        if self.training:
            return -self.marginal(self.model(x), y)
        prediction = self.likelihood(self.model(x))
        return prediction.mean, prediction.variance


def _points(count: int, width: int) -> dict[str, Any]:
    x = torch.rand(count, width)
    return {"x": x, "y": torch.sin(6 * x.sum(-1)) + 0.1 * torch.randn(count)}


@family("gpytorch")
def exact_process() -> Built:
    import gpytorch

    known = _points(64, 1)

    class Exact(gpytorch.models.ExactGP):
        def __init__(self, likelihood: Any) -> None:
            super().__init__(known["x"], known["y"], likelihood)
            self.mean_module = gpytorch.means.ConstantMean()
            self.covar_module = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel())

        def forward(self, x: torch.Tensor) -> Any:
            return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))

    class Fit(_Regression):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
            return super().forward(known["x"], known["y"]) if self.training else super().forward(x, y)

    likelihood = gpytorch.likelihoods.GaussianLikelihood()
    model = Exact(likelihood)
    marginal = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)
    return Built(Fit(model, likelihood, marginal), lambda: _points(32, 1))


def _variational(features: torch.nn.Module | None, width: int) -> Built:
    import gpytorch

    class Variational(gpytorch.models.ApproximateGP):
        def __init__(self, inducing: torch.Tensor) -> None:
            distribution = gpytorch.variational.CholeskyVariationalDistribution(inducing.size(0))
            super().__init__(gpytorch.variational.VariationalStrategy(self, inducing, distribution))
            self.mean_module = gpytorch.means.ConstantMean()
            self.covar_module = gpytorch.kernels.ScaleKernel(gpytorch.kernels.MaternKernel())

        def forward(self, x: torch.Tensor) -> Any:
            return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))

    class Deep(torch.nn.Module):
        def __init__(self, process: torch.nn.Module) -> None:
            super().__init__()
            self.features, self.process = features or torch.nn.Identity(), process

        def forward(self, x: torch.Tensor) -> Any:
            return self.process(self.features(x))

    process = Variational(torch.rand(24, 2))
    likelihood = gpytorch.likelihoods.GaussianLikelihood()
    marginal = gpytorch.mlls.VariationalELBO(likelihood, process, 256)
    return Built(_Regression(Deep(process), likelihood, marginal), lambda: _points(256, width))


@family("gpytorch")
def variational_process() -> Built:
    return _variational(None, 2)


@family("gpytorch")
def deep_kernel_process() -> Built:
    network = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Linear(64, 2), torch.nn.Sigmoid())
    return _variational(network, 16)


class _Field(torch.nn.Module):
    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(2, width), torch.nn.Tanh(), torch.nn.Linear(width, 2))

    def forward(self, t: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return self.layers(y**3)


class _Solver(torch.nn.Module):
    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.field, self.options = _Field(), options

    def forward(self, y: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        from torchdiffeq import odeint, odeint_adjoint

        options = dict(self.options)
        solve = odeint_adjoint if options.pop("adjoint", False) else odeint
        return solve(self.field, y, t, **options)


def _start() -> dict[str, Any]:
    return {"y": torch.randn(64, 2), "t": torch.linspace(0.0, 1.0, 10)}


@family("torchdiffeq")
def equation_rk4() -> Built:
    return Built(_Solver(method="rk4"), _start)


@family("torchdiffeq")
def equation_dopri5() -> Built:
    return Built(_Solver(method="dopri5", rtol=1e-4, atol=1e-4), _start)


@family("torchdiffeq")
def equation_adjoint() -> Built:
    return Built(_Solver(method="euler", adjoint=True), _start)
