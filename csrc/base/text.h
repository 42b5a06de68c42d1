// str(a, b, ...): one string out of anything that has operator<<. Used for error texts only, so
// speed does not matter.
#pragma once

#include <sstream>
#include <string>

namespace gradring {

template <typename... Parts>
std::string str(const Parts&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  return out.str();
}

}  // namespace gradring
