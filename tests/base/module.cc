// A library that shared_library_test opens.
extern "C" int gnomon_module_twice(int x) { return 2 * x; }
