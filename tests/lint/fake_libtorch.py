"""Helper for the tests of scripts that look for LibTorch: makes a folder that looks like one."""
import pathlib


def make_libtorch(folder, version="2.13.0"):
    folder = pathlib.Path(folder)
    numbers = dict(zip(("MAJOR", "MINOR", "PATCH"), version.split(".")))
    headers = "".join(f"#define TORCH_VERSION_{name} {number}\n" for name, number in numbers.items())
    for name, text in (("include/torch/csrc/api/include/torch/torch.h", ""),
                       ("include/torch/headeronly/version.h", headers),
                       ("lib/libtorch_cpu.so", ""), ("lib/libc10.so", "_ZN3c105ErrorC1Ecxx11\n")):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    (folder / "share/cmake/Torch").mkdir(parents=True)
    return folder
