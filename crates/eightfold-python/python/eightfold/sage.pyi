from . import sageattn as sageattn
