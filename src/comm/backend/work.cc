#include <lockstep/comm/backend.h>
#include <lockstep/comm/work.h>

namespace lockstep {

void Work::wait() {
  if (!backend_) return;
  backend_->check_process();
  backend_->wait(ticket_);
}

bool Work::done() const {
  return !backend_ || backend_->is_copy_of_parent() || backend_->done(ticket_);
}

}  // namespace lockstep
