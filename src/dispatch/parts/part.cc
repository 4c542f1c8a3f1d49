#include <lockstep/dispatch/part.h>

#include "base/check.h"
#include "dispatch/key.h"
#include "dispatch/parts/part_record.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>

#include <cmath>
#include <limits>
#include <typeinfo>
#include <utility>

namespace lockstep::dispatch {

Division::Division(std::shared_ptr<Group> ranks, std::optional<Duration> timeout)
    : Division(nullptr, std::move(ranks), timeout) {}

Division::Division(std::shared_ptr<Division> inner, std::shared_ptr<Group> ranks,
                   std::optional<Duration> timeout)
    : ranks_(std::move(ranks)), inner_(std::move(inner)), timeout_(timeout) {}

Division::Division(std::shared_ptr<Division> inner, std::shared_ptr<Division> outer)
    : inner_(std::move(inner)), outer_(std::move(outer)) {}

int Division::size() const {
  return (inner_ ? inner_->size() : 1) * (outer_ ? outer_->size() : ranks_->size());
}

double Division::sum(double number) { return sum_over_last(sum_inside(number)); }

double Division::largest(double number) { return largest_over_last(largest_inside(number)); }

double Division::sum_inside(double number) {
  if (inner_) number = inner_->sum(number);
  return outer_ ? outer_->sum_inside(number) : number;
}

double Division::largest_inside(double number) {
  if (inner_) number = inner_->largest(number);
  return outer_ ? outer_->largest_inside(number) : number;
}

const Group* Division::last_ranks() const { return outer_ ? outer_->last_ranks() : ranks_.get(); }

double Division::sum_over_last(double number) {
  if (outer_) return outer_->sum_over_last(number);
  if (ranks_->size() == 1) return number;
  at::Tensor all = at::full({1}, number, at::kDouble);
  ranks_->all_reduce(all, Op::sum, {.tag = "parts of a norm", .timeout = timeout_}).wait();
  return all.item<double>();
}

// Engines differ in what the maximum of a number and NaN is.
double Division::largest_over_last(double number) {
  if (outer_) return outer_->largest_over_last(number);
  if (ranks_->size() == 1) return number;
  bool is_nan = std::isnan(number);
  at::Tensor all = at::tensor({is_nan ? 0.0 : number, is_nan ? 1.0 : 0.0}, at::kDouble);
  ranks_->all_reduce(all, Op::max, {.tag = "largest of the parts", .timeout = timeout_}).wait();
  const double* numbers = all.const_data_ptr<double>();
  return numbers[1] > 0 ? std::numeric_limits<double>::quiet_NaN() : numbers[0];
}

Parts::Parts(std::shared_ptr<Division> division, std::vector<Part> parts)
    : division_(std::move(division)), parts_(std::move(parts)) {
  check(division_ != nullptr && !parts_.empty(), "Parts: expected a division and a part");
}

// Where parts are empty several begin at one place.
const Part& Parts::at(std::int64_t offset, std::int64_t count) const {
  const Part* found = &parts_.front();
  for (const Part& part : parts_) {
    if (part.offset == offset && part.slice.numel() == count) return part;
    if (part.offset <= offset) found = &part;
  }
  return *found;
}

const PartRecord* part_record_of(const c10::TensorImpl& tensor) {
  const StorageRecord* record = record_of(tensor);
  bool is_of_parts = record != nullptr && typeid(*record) == typeid(PartRecord);
  return is_of_parts ? static_cast<const PartRecord*>(record) : nullptr;
}

std::shared_ptr<const Parts> parts_of(const at::Tensor& tensor) {
  if (!tensor.defined()) return nullptr;
  const PartRecord* record = part_record_of(*tensor.unsafeGetTensorImpl());
  return record == nullptr ? nullptr : record->parts;
}

const Part* part_of(const at::Tensor& tensor) {
  if (!tensor.defined()) return nullptr;
  const PartRecord* record = part_record_of(*tensor.unsafeGetTensorImpl());
  if (record == nullptr) return nullptr;
  return &record->parts->at(record->first + tensor.storage_offset(), tensor.numel());
}

std::shared_ptr<Division> division_of(const at::Tensor& tensor) {
  const Part* part = part_of(tensor);
  return part == nullptr ? nullptr : parts_of(tensor)->division_of(*part);
}

at::Tensor as_part(const at::Tensor& values, std::shared_ptr<const Parts> parts,
                   std::int64_t offset, c10::DispatchKey key) {
  LazyStorage storage(static_cast<std::int64_t>(values.nbytes()), values.device(), {}, key, "",
                      std::make_shared<PartRecord>(std::move(parts), offset));
  storage.attach(values);
  return storage.place(values.scalar_type(), 0, values.sizes(), values.strides());
}

at::Tensor as_part_like(const at::Tensor& values, const at::Tensor& part) {
  const PartRecord* record = part_record_of(*part.unsafeGetTensorImpl());
  if (record == nullptr) return values;
  return as_part(values, record->parts, record->first + part.storage_offset(), key());
}

at::Tensor values_of(const at::Tensor& tensor) {
  if (part_record_of(*tensor.unsafeGetTensorImpl()) == nullptr) return tensor;
  return at::empty({0}, tensor.options())
      .set_(tensor.storage(), tensor.storage_offset(), tensor.sizes(), tensor.strides());
}

}  // namespace lockstep::dispatch
