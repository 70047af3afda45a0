//! The `eightfold` command.
fn main() {}
