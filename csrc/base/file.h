// Writes a whole file at once: readers see the old one or the new one, never a part.
#pragma once

#include <string>
#include <string_view>

namespace gradring {

// Makes the folder (for this user only) if it is missing. Returns "", or why it could not be done;
// never throws.
std::string write_file(const std::string& path, std::string_view text) noexcept;

}  // namespace gradring
