#include "rank_env/own_failure.h"

#include "base/environment.h"
#include "base/log.h"
#include "rank_env/variables.h"
#include "sys/files.h"

#include <nlohmann/json.hpp>

#include <ctime>
#include <string>

namespace lockstep::rank_env {

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
    log::debug("this rank's error file could not be written: {}", problem.what());
  }
}

}  // namespace lockstep::rank_env
