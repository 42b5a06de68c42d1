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
// folder/segment-000000000007.log and the like: twelve digits.
std::string numbered(const std::string& prefix, std::uint64_t number, const std::string& suffix);
// Of the files that are called prefix, number, suffix: the numbers, ascending.
std::vector<std::uint64_t> numbers_in(const std::string& folder, const std::string& prefix,
                                      const std::string& suffix);
void remove_file(const std::string& path);  // If it is there.

// The last segment that a log has is told by the name of an empty file, folder/newest-000000000007:
// nothing else would miss it. A rename, so that a crash leaves the old number or the new one.
void tell_newest_segment(const std::string& folder, std::uint64_t segment, bool syncs);
// Throws ProtocolError if the segment that is told, or the first one, which `snapshot` tells unless
// it is "", is missing with all behind it.
void require_newest_segment(const std::string& folder, std::uint64_t first,
                            const std::string& snapshot);

}  // namespace gradring::ps
