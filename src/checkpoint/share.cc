#include <lockstep/checkpoint/share.h>

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <nlohmann/json.hpp>

#include <string>
#include <vector>

namespace lockstep::checkpoint {
namespace {

using Json = nlohmann::json;

Json shapes_of(const NamedTensors& tensors) {
  Json shapes = Json::object();
  for (const auto& [name, tensor] : tensors)
    shapes[name] = {{"dtype", static_cast<int>(tensor.scalar_type())},
                    {"shape", tensor.sizes().vec()}};
  return shapes;
}

NamedTensors empty_like(const Json& shapes) {
  NamedTensors tensors;
  for (const auto& [name, fields] : shapes.items())
    tensors[name] =
        at::empty(fields.at("shape").get<std::vector<std::int64_t>>(),
                  at::TensorOptions(static_cast<at::ScalarType>(fields.at("dtype").get<int>())));
  return tensors;
}

std::string describe(const TrainingState& state) {
  Json random = Json::array();
  for (const at::Tensor& tensor : state.random) random.push_back(tensor.numel());
  return Json{{"step", state.step},
              {"epoch", state.epoch},
              {"model", shapes_of(state.model)},
              {"optimizer", shapes_of(state.optimizer)},
              {"random", random},
              {"progress", state.progress},
              {"config", state.config}}
      .dump();
}

TrainingState make_empty(const std::string& description) {
  Json json = Json::parse(description);
  TrainingState state{.step = json.at("step"),
                      .epoch = json.at("epoch"),
                      .model = empty_like(json.at("model")),
                      .optimizer = empty_like(json.at("optimizer")),
                      .random = {},
                      .progress = json.at("progress").get<Metadata>(),
                      .config = json.at("config").get<Metadata>()};
  for (std::int64_t bytes : json.at("random"))
    state.random.push_back(at::empty({bytes}, at::kByte));
  return state;
}

void broadcast_all(Group& group, const NamedTensors& tensors, int root) {
  for (const auto& [name, tensor] : tensors) group.broadcast(tensor, root, {.tag = name}).wait();
}

}  // namespace

std::string broadcast_text(Group& group, std::string text, int root) {
  at::Tensor length = at::empty({1}, at::kLong).fill_(static_cast<std::int64_t>(text.size()));
  group.broadcast(length, root).wait();
  text.resize(length.item<std::int64_t>());
  if (!text.empty())
    group.broadcast(at::from_blob(text.data(), {length.item<std::int64_t>()}, at::kByte), root)
        .wait();
  return text;
}

TrainingState share(Group& group, TrainingState state, int root) {
  bool is_root = group.is_root(root);
  std::string description = broadcast_text(group, is_root ? describe(state) : std::string(), root);
  if (!is_root) state = make_empty(description);
  broadcast_all(group, state.model, root);
  broadcast_all(group, state.optimizer, root);
  for (const at::Tensor& tensor : state.random) group.broadcast(tensor, root).wait();
  return state;
}

}  // namespace lockstep::checkpoint
