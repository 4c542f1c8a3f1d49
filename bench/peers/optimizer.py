"""AdamW over 16,777,216 fp32 parameters in one thread: ns a parameter."""
import torch

from common import emit, seconds_of

TENSORS, ELEMENTS = 16, 1 << 20


def measure(fused):
    parameters = [torch.nn.Parameter(torch.randn(ELEMENTS)) for _ in range(TENSORS)]
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter)
    seconds = seconds_of(torch.optim.AdamW(parameters, lr=1e-3, fused=fused).step, 10)
    emit(optimizer="fused" if fused else "default",
         ns_per_param=min(seconds) * 1e9 / (TENSORS * ELEMENTS))


if __name__ == "__main__":
    torch.set_num_threads(1)
    measure(fused=False)
    measure(fused=True)
