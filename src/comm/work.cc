#include <lockstep/comm/backend.h>
#include <lockstep/comm/work.h>

namespace lockstep {

void Work::wait() {
  if (backend_) backend_->wait(ticket_);
}

bool Work::done() const { return !backend_ || backend_->done(ticket_); }

}  // namespace lockstep
