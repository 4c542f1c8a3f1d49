#include "base/check.h"
#include "base/visible.h"
#include "checkpoint/distributed_checkpoint.h"
#include "checkpoint/file_part.h"
#include "module/tensors.h"

#include <lockstep/comm/together.h>

#include <optional>
#include <set>
#include <string>
#include <vector>

namespace lockstep::checkpoint {
namespace {

// The tensors of one model in a folder, under its own names.
class DistributedModel {
 public:
  DistributedModel(const std::filesystem::path& folder, const std::string& key)
      : folder_(folder, {.map = true}), shown_(folder.string()), prefix_(key + ".") {}

  // Names of the folder that this rank's parts have; BadInput for one that does not fit.
  [[nodiscard]] std::set<std::string> check_fits(const std::vector<Part>& state) const {
    std::set<std::string> known;
    for (const Part& part : state) {
      if (part.kind == PartKind::ignored) continue;
      for (const std::string& name : names_of(part)) {
        const DistributedFolder::Entry& entry = folder_.entries().at(name);
        check_input(entry.is_tensor && entry.sizes == part.slice.sizes &&
                        entry.dtype == part.tensor.scalar_type(),
                    "{}: '{}': expected a tensor of {} [{}], found {} [{}]", shown_, visible(name),
                    c10::toString(part.tensor.scalar_type()), listed(part.slice.sizes, ", "),
                    c10::toString(entry.dtype), listed(entry.sizes, ", "));
        known.insert(name);
      }
    }
    return known;
  }

  void check_all_known(const std::set<std::string>& known) const {
    for (const auto& [name, entry] : folder_.entries())
      check_input(!name.starts_with(prefix_) || known.contains(name),
                  "{}: '{}' is a tensor that the model does not have", shown_, visible(name));
  }

  // A tied tensor has its values under any of its names.
  void fill(const Part& part) const {
    const DistributedFolder::Entry& entry = folder_.entries().at(names_of(part).front());
    const std::vector<layout::Box> boxes = layout::boxes_of(part.slice);
    for (const DistributedFolder::Chunk& chunk : entry.chunks) {
      std::optional<at::Tensor> values;
      for (const layout::Box& box : boxes) {
        const layout::Box common = layout::intersect(box, chunk.box);
        if (common.empty()) continue;
        if (!values) values = folder_.part(entry, chunk);
        layout::Box within = common;
        for (std::size_t dim = 0; dim < within.offsets.size(); ++dim)
          within.offsets[dim] -= chunk.box.offsets[dim];
        view_of(part.tensor, part.slice, common).copy_(modules::box_in_whole(*values, within));
      }
    }
  }

 private:
  [[nodiscard]] std::vector<std::string> names_of(const Part& part) const {
    std::vector<std::string> names{prefix_ + part.name};
    for (const std::string& alias : part.aliases) names.push_back(prefix_ + alias);
    std::erase_if(names, [&](const auto& name) { return !folder_.entries().contains(name); });
    check_input(!names.empty(), "{}: expected a tensor '{}', found none", shown_,
                visible(prefix_ + part.name));
    return names;
  }

  const DistributedFolder folder_;
  const std::string shown_, prefix_;
};

}  // namespace

void load_distributed_model(const std::filesystem::path& folder, Handle& handle,
                            const std::string& key) {
  Group group = handle.group();
  std::optional<DistributedModel> model;
  std::set<std::string> known;
  together(group, [&] {
    model.emplace(folder, key);
    known = model->check_fits(handle.parts_to_load());
  });
  known = names_of_all(group, known);
  together(group, [&] { model->check_all_known(known); });
  const LoadScope scope = handle.loading();
  together(group, [&] {
    for (const Part& part : scope)
      if (part.kind != PartKind::ignored) model->fill(part);
  });
}

}  // namespace lockstep::checkpoint
