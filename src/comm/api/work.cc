#include <lockstep/comm/work.h>

#include "comm/api/group_state.h"

namespace lockstep {

void Work::wait() {
  if (group_) group_->wait(ticket_, entry_);
}

bool Work::done() const { return !group_ || group_->done(ticket_); }

}  // namespace lockstep
