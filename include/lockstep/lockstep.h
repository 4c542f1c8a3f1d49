// All of Lockstep that a training program calls. Include single headers instead where build time
// matters.
#pragma once

#include <lockstep/base/error.h>
#include <lockstep/checkpoint/safetensors.h>
#include <lockstep/comm/functional.h>
#include <lockstep/comm/group.h>
#include <lockstep/comm/init.h>
#include <lockstep/comm/local.h>
#include <lockstep/data/loader.h>
#include <lockstep/data/mnist.h>
#include <lockstep/data/text.h>
#include <lockstep/data/torch_sampler.h>
#include <lockstep/mesh/mesh.h>
#include <lockstep/models/conv_net.h>
#include <lockstep/models/gpt.h>
#include <lockstep/models/mlp.h>
#include <lockstep/optim/adam.h>
#include <lockstep/optim/adamw.h>
#include <lockstep/optim/decay.h>
#include <lockstep/optim/grad_scaler.h>
#include <lockstep/optim/scheduler.h>
#include <lockstep/optim/sgd.h>
#include <lockstep/parallel/data/distributed_data_parallel.h>
#include <lockstep/parallel/sharded/deferred.h>
#include <lockstep/parallel/sharded/fully_shard.h>
#include <lockstep/parallel/sharded/sharded_build.h>
