#pragma once
#include "ptx/address.cuh"
inline uint4 load(const char* source) { return loaded<uint4>(source); }
inline uint4 load_last(const char* source) { return loaded<uint4>(source); }
inline uint4 load_last_if(bool exists, const char* source) {
    return exists ? load_last(source) : make_uint4(0, 0, 0, 0);
}
