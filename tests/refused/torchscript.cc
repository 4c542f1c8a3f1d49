// Does not compile with REFUSED_STATEMENT=1 to 6: the compiler says in one line how a TorchScript
// module is trained.
#include <lockstep/lockstep.h>

#include <torch/script.h>

int main() {
  lockstep::Group world;
  torch::jit::Module script("script");
#if REFUSED_STATEMENT == 1
  lockstep::DistributedDataParallel ddp(script, world, {.bucket_bytes = 1});
#elif REFUSED_STATEMENT == 2
  auto sharded = lockstep::fully_shard(script, world, {.units = {"*"}});
#elif REFUSED_STATEMENT == 3
  auto parallel = lockstep::parallelize(script, lockstep::Mesh(world, {{"tp", 1}}));
#elif REFUSED_STATEMENT == 4
  lockstep::LocalSgd local(script, world);
#elif REFUSED_STATEMENT == 5
  lockstep::DiLoCo diloco(script, world);
#elif REFUSED_STATEMENT == 6
  lockstep::SyncBatchNorm sync(script, world);
#endif
}
