// The program's own init() succeeds; the plug-in's init() reports the conflict.
#include <lockstep/comm/init.h>

#include <cstdio>

#include <dlfcn.h>

int main(int, char** arguments) {
  lockstep::Group world = lockstep::init();
  void* plugin = dlopen(arguments[1], RTLD_NOW | RTLD_LOCAL);
  if (plugin == nullptr) return std::puts(dlerror()), 1;
  auto* try_init = reinterpret_cast<const char* (*)()>(dlsym(plugin, "try_init"));
  std::printf("the plug-in: %s\n", try_init());
}
