//! Which block of a launch does which tiles of queries, as a list in device memory.

use super::driver::Buffer;
use super::kernel::{Arguments, Kernel};
use crate::error::{Error, Result};
use crate::problem::Problem;

/// Behind the last tile of a block.
const END: i32 = -1;

/// Which block of a launch does which tiles of queries, in which order: for problems whose tiles differ in length. Launches only
/// read it, any number of them at a time.
#[derive(Debug)]
pub struct TileList {
    list: Buffer,
    /// Places in the list of a block.
    listed: i32,
    problem: Problem,
}

impl TileList {
    /// The list for a problem on this kernel, and waits until it is there; none where blocks find their tiles as fast without.
    pub fn new(kernel: &Kernel, problem: &Problem) -> Result<Option<TileList>> {
        let Some(order) = kernel.schedule(problem)? else { return Ok(None) };
        let (places, listed) = in_lists(&order);
        let device = kernel.device();
        let list = device.allocate(size_of_val(places.as_slice()))?;
        list.upload(&device.stream()?, &places)?;
        Ok(Some(TileList { list, listed: listed as i32, problem: *problem }))
    }

    /// The same launch with tiles dealt out by this list, which must live as long as the arguments are launched.
    pub fn deal(&self, arguments: Arguments, problem: &Problem) -> Result<Arguments> {
        let tiles = |problem: &Problem| (problem.shape(), problem.mask(), problem.window());
        if tiles(&self.problem) != tiles(problem) {
            return Err(Error::invalid(
                "list",
                format!("was made for {}, and the problem is {problem}", self.problem),
                "make a list for each problem",
            ));
        }
        Ok(arguments.with_list(self.list.pointer(), self.listed))
    }
}

/// One list after the other, all as long as the longest with its end, and how long that is.
fn in_lists(order: &[Vec<i32>]) -> (Vec<i32>, usize) {
    let listed = 1 + order.iter().map(Vec::len).max().unwrap_or(0);
    let mut places = vec![END; order.len() * listed];
    for (list, tiles) in places.chunks_exact_mut(listed).zip(order) {
        list[..tiles.len()].copy_from_slice(tiles);
    }
    (places, listed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_list_ends() {
        assert_eq!(in_lists(&[vec![4, 0], vec![1], vec![]]), (vec![4, 0, END, 1, END, END, END, END, END], 3));
    }
}
