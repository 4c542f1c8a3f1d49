#include <lockstep/base/error.h>
#include <lockstep/comm/init.h>

#include <string>

extern "C" __attribute__((visibility("default"))) const char* try_init() {
  static std::string text = "nothing";
  try {
    lockstep::Group world = lockstep::init();
  } catch (const lockstep::Error& error) {
    text = error.what();
  }
  return text.c_str();
}
