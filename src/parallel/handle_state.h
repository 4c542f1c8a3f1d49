// HandleState: what a strategy implements behind a Handle (lockstep/parallel/handle.h).
#pragma once

#include <lockstep/parallel/handle.h>
#include <lockstep/parallel/join.h>

#include <functional>
#include <string_view>

namespace lockstep {

class HandleState {
 public:
  virtual ~HandleState() = default;

  // Local, once, before anything else goes: the module is on its own.
  virtual void detach() = 0;

  [[nodiscard]] virtual std::vector<NamedPart> named_parameters() const = 0;
  virtual void zero_grad(bool set_to_none) = 0;
  // InvalidArgument when there is nothing to clip; `operation` is for the message.
  virtual void check_gradients(std::string_view /*operation*/) const {}
  // Of no_sync().
  virtual void pause() = 0;
  virtual void resume() = 0;

  [[nodiscard]] virtual std::map<std::string, at::Tensor> state_dict() = 0;
  virtual void load_state_dict(const std::map<std::string, at::Tensor>& tensors) = 0;
  [[nodiscard]] virtual std::vector<NamedPart> state_parts() = 0;
  // Under the caller's grad mode; see Handle.
  virtual void load_state_parts(const std::function<void(const NamedPart&)>& read);
  // Around the writes of load_state_parts().
  virtual void before_load() {}
  virtual void after_load() {}

  [[nodiscard]] virtual HandleMemory memory() const = 0;
  [[nodiscard]] virtual std::shared_ptr<optim::StateMemory> state_memory() const { return nullptr; }
  // Null: every rank updates what it has.
  [[nodiscard]] virtual std::shared_ptr<optim::SharedUpdate> shared_update() { return nullptr; }
  [[nodiscard]] virtual double seconds_waited() const = 0;
  [[nodiscard]] virtual StepTiming timing() const { return {}; }
  // Local: ends every group that the strategy computes with, on every rank that can be reached. Of
  // a strategy that has others than group() and those of mesh(): these too. Called by any thread,
  // also during detach(): reads only what is fixed when the strategy has been made.
  virtual void abort(std::string_view reason) noexcept;
  // abort() of a handle's strategy, for as long as that is there. To be called by any thread.
  [[nodiscard]] static std::function<void(std::string_view)> abort_of(const Handle& handle);
  // InvalidArgument where the strategy has none.
  [[nodiscard]] virtual Joinable& joinable();
  [[nodiscard]] virtual const Group& group() const = 0;
  [[nodiscard]] virtual std::optional<Mesh> mesh() const { return std::nullopt; }
  // InvalidArgument where what ranks have is not one model, and nothing can be saved.
  virtual void check_one_model() const {}

 protected:
  // Nothing is left to do for one that is dead already, or has this rank alone.
  static void abort_group(Group group, std::string_view reason) noexcept;
  // The group of all its ranks and those of its axes.
  static void abort_mesh(const Mesh& mesh, std::string_view reason) noexcept;
};

}  // namespace lockstep
