// Does not compile: the compiler says in one line how a TorchScript module is trained.
#include <lockstep/lockstep.h>

#include <torch/script.h>

int main() {
  lockstep::Group world;
  torch::jit::Module script("script");
  lockstep::DistributedDataParallel ddp(script, world, {.bucket_bytes = 1});
  auto sharded = lockstep::fully_shard(script, world, {.units = {"*"}});
  auto parallel = lockstep::parallelize(script, lockstep::Mesh(world, {{"tp", 1}}));
  lockstep::LocalSgd local(script, world);
  lockstep::DiLoCo diloco(script, world);
  lockstep::SyncBatchNorm sync(script, world);
}
