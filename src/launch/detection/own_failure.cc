#include "launch/detection/own_failure.h"

#include "base/environment.h"
#include "base/log.h"
#include "launch/environment.h"
#include "sys/files.h"

#include <nlohmann/json.hpp>

#include <ctime>
#include <string>

namespace lockstep::launch {

void record_own_failure(std::string_view text) noexcept {
  using nlohmann::json;
  try {
    const auto file = environment::text(variable::error_file);
    if (!file) return;
    const json error{
        {"message",
         {{"message", text},
          {"extraInfo",
           {{"py_callstack", text}, {"timestamp", std::to_string(std::time(nullptr))}}}}}};
    sys::AtomicFile::write_for_now(*file,
                                   error.dump(-1, ' ', false, json::error_handler_t::replace));
  } catch (const std::exception& problem) {
    log::debug("the error file of this rank: {}", problem.what());
  }
}

}  // namespace lockstep::launch
