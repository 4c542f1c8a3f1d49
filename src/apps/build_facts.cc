#include "apps/build_facts.h"

#include "apps/facts.h"
#include "apps/simd.h"

#include <string>
#include <vector>

namespace lockstep::apps {

namespace {

std::vector<std::string> engines() {
  std::vector<std::string> names;
  if (*build::libtorch_version != '\0') names = {"local", "shm"};
  if (build::gloo) names.push_back("gloo");
  if (build::nccl) names.push_back("nccl");
  if (build::mpi) names.push_back("mpi");
  if (build::gloo || build::mpi) names.push_back("hierarchical");
  return names;
}

Facts text_or_null(const char* text) { return *text == '\0' ? Facts() : Facts(text); }

}  // namespace

Facts build_facts() {
  return {{"version", build::version},
          {"compiler", build::compiler},
          {"type", build::type},
          {"system", build::system},
          {"libtorch", text_or_null(build::libtorch_version)},
          {"libtorch_folder", text_or_null(build::libtorch_folder)},
          {"cuda", build::cuda},
          {"engines", engines()},
          {"simd", compiled_simd()}};
}

}  // namespace lockstep::apps
