// The names in a log's folders: made, listed, removed. Where the disk says no it is a DeviceError
// that names the path and what to do.
#pragma once

#include <cstdint>
#include <string>
#include <system_error>
#include <vector>

namespace gradring::ps {

// With all above it that are missing. `syncs`: durable, as a power failure that takes the name of a
// new folder takes all that is in it.
void make_folders(const std::string& folder, bool syncs, std::error_code& error);
std::vector<std::string> names_in(const std::string& folder);
// Of the files that are called prefix, number, suffix: the numbers, ascending.
std::vector<std::uint64_t> numbers_in(const std::string& folder, const std::string& prefix,
                                      const std::string& suffix);
void remove_file(const std::string& path);  // If it is there.

}  // namespace gradring::ps
