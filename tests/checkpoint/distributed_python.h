// Folders that PyTorch's distributed checkpoint writes with FSDP2.
#pragma once

#include "checkpoint/torch_python.h"

#include <lockstep/checkpoint/distributed_checkpoint.h>

#include <filesystem>
#include <string>

namespace lockstep::checkpoint {

// Trains 2 steps on RANKS ranks. Saves FOLDER/dcp (from get_state_dict()), FOLDER/plain (from the
// state_dict() of model and optimizer), and FOLDER/whole.pt with the full state from rank 0. With 4
// ranks, one of them has no row of the last layer.
inline const std::string distributed_writer = R"(
import os, pickle
import torch.distributed as dist, torch.distributed.checkpoint as dcp
import torch.distributed.distributed_c10d as c10d
from torch.distributed.fsdp import fully_shard
from torch.distributed.checkpoint.state_dict import get_state_dict, StateDictOptions
folder, ranks, kind = sys.argv[1], int(sys.argv[2]), sys.argv[3]
# Without NumPy, which these tests do not ask for.
c10d._tensor_to_object = lambda tensor, size, *rest: pickle.loads(bytes(tensor.tolist()[:size]))
torch.set_num_threads(1)
os.makedirs(folder)
rank, children = 0, []
for other in range(1, ranks):
    child = os.fork()
    if child == 0:
        rank, children = other, []
        break
    children.append(child)
dist.init_process_group("gloo", init_method="file://" + folder + "/store", rank=rank,
                        world_size=ranks)
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.BatchNorm1d(7),
                            torch.nn.Linear(7, 3))
fully_shard(model[0])
fully_shard(model)
optimizer = getattr(torch.optim, kind)(model.parameters(), lr=0.125)
for _ in range(2):
    model(torch.randn(4, 5)).square().sum().backward()
    optimizer.step()
    optimizer.zero_grad()
def both(**options):
    states = get_state_dict(model, optimizer, options=StateDictOptions(**options))
    return dict(zip(("model", "optim"), states))
dcp.save({**both(), "step": 7, "note": "höhe", "history": [1.5, {"best": 2}]},
         checkpoint_id=folder + "/dcp")
dcp.save({"model": model.state_dict(), "optim": optimizer.state_dict()},
         checkpoint_id=folder + "/plain")
whole = both(full_state_dict=True, cpu_offload=True)
if rank == 0:
    torch.save(whole, folder + "/whole.pt")
dist.barrier()
if rank > 0:
    os._exit(0)
assert all(os.waitpid(child, 0)[1] == 0 for child in children)
)";

class DistributedCheckpoint : public TorchFile {
 protected:
  std::filesystem::path write(int ranks, const char* kind = "AdamW") const {
    std::filesystem::path folder = folder_ / std::to_string(ranks);
    expect_python(distributed_writer, {folder.string(), std::to_string(ranks), kind});
    return folder;
  }
};

}  // namespace lockstep::checkpoint
