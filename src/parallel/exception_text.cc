#include "parallel/exception_text.h"

#include "comm/backend/one_line.h"

#include <c10/util/Exception.h>

namespace lockstep::parallel {

std::string exception_text(const std::exception_ptr& problem) {
  try {
    std::rethrow_exception(problem);
  } catch (const c10::Error& error) {
    return first_line(error.what_without_backtrace());
  } catch (const std::exception& error) {
    return first_line(error.what());
  } catch (...) {
    return "an exception that is no std::exception";
  }
}

}  // namespace lockstep::parallel
