//! How candle's tensors of dims `[batch, rows, heads, channels]` lie in memory.

use candle_core::Layout;
use eightfold::{Dims, Strides};
use std::borrow::Cow;

/// The dims and the strides, in Eightfold's names.
pub(crate) fn of(layout: &Layout) -> Option<(Dims, Strides)> {
    let (&[batch, len, heads, head_dim], &[of_batch, of_row, of_head, of_channel]) = (layout.dims(), layout.stride())
    else {
        return None;
    };
    let strides = Strides::new(of_batch, of_head, of_row, of_channel);
    Some((Dims::new(batch, heads, len, head_dim), strides))
}

/// The values in one of the orders that Eightfold reads on a host, copied where they lie otherwise.
pub(crate) fn in_order<'a, T: Copy>(
    values: &'a [T],
    layout: &Layout,
) -> Option<(Cow<'a, [T]>, Dims, eightfold::Layout)> {
    let (dims, strides) = of(layout)?;
    let start = layout.start_offset();
    for order in [eightfold::Layout::Bshd, eightfold::Layout::Bhsd] {
        if same(dims, strides, order.strides(dims)) {
            return Some((values.get(start..start + dims.count())?.into(), dims, order));
        }
    }
    let mut copy = Vec::with_capacity(dims.count());
    for batch in 0..dims.batch {
        for row in 0..dims.len {
            for head in 0..dims.heads {
                let first = start + strides.row_offset(batch, head, row);
                copy.extend((0..dims.head_dim).map(|channel| values[first + channel * strides.channel]));
            }
        }
    }
    Some((copy.into(), dims, eightfold::Layout::Bshd))
}

/// Whether two strides lead to the same places: that of a dimension of size 1 leads nowhere.
fn same(dims: Dims, one: Strides, other: Strides) -> bool {
    let Dims { batch, heads, len, head_dim, .. } = dims;
    [
        (batch, one.batch, other.batch),
        (heads, one.head, other.head),
        (len, one.row, other.row),
        (head_dim, one.channel, other.channel),
    ]
    .iter()
    .all(|(size, one, other)| *size == 1 || one == other)
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::Shape;

    #[test]
    fn every_element_keeps_its_place() {
        // [batch, rows, heads, channels] = [2, 3, 2, 8], seen from four orders in memory, with something before.
        let dims = [2usize, 3, 2, 8];
        for order in [[0usize, 1, 2, 3], [0, 2, 1, 3], [2, 0, 1, 3], [3, 1, 0, 2]] {
            let mut stride = [0; 4];
            let mut step = 1;
            for &dim in order.iter().rev() {
                stride[dim] = step;
                step *= dims[dim];
            }
            let values: Vec<usize> = (0..step + 5).collect();
            let layout = Layout::new(Shape::from(dims.to_vec()), stride.to_vec(), 5);
            let (found, dims, order) = in_order(&values, &layout).unwrap();
            let strides = order.strides(dims);
            for (batch, row, head, channel) in [(0, 0, 0, 0), (1, 2, 1, 7), (1, 0, 1, 3), (0, 1, 0, 5)] {
                let expected = 5 + batch * stride[0] + row * stride[1] + head * stride[2] + channel * stride[3];
                assert_eq!(found[strides.row_offset(batch, head, row) + channel], expected, "{stride:?}");
            }
        }
        assert!(in_order(&[0u8; 4], &Layout::contiguous((2, 2))).is_none());
    }
}
