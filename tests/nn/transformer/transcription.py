"""The transformer of the papers, a point at a time, from the parameters of a layer."""

import math

import torch


def point(s, c):
    """The point of the hyperboloid with given space coordinates."""
    return torch.cat(((1 / c + s.dot(s)).sqrt().unsqueeze(0), s))


def product(p, q):
    """The Lorentz product."""
    return p[1:].dot(q[1:]) - p[0] * q[0]


def exponential(v, c):
    """Exponential map at the origin of a tangent, given by its space coordinates."""
    length = math.sqrt(c) * v.norm()
    return point(torch.sinh(length) / length * v, c)


def logarithm(x, c):
    """Logarithm at the origin, as space coordinates."""
    length = torch.acosh(math.sqrt(c) * x[0]) / math.sqrt(c)
    return length * x[1:] / x[1:].norm()


def linear(layer, x):
    """Space coordinates, or tangents, of a fully connected layer."""
    return layer.weight @ x + layer.bias


def gelu(s):
    return s * (1 + torch.erf(s / math.sqrt(2))) / 2


def turned(s, position, base):
    """Rotary positions as products of complex numbers."""
    half = len(s) // 2
    out = s.clone()
    for k in range(half):
        z = torch.complex(s[k], s[k + half])
        angle = torch.tensor(position * base ** (-2 * k / len(s)), dtype=s.dtype)
        z = z * torch.polar(torch.ones_like(angle), angle)
        out[k], out[k + half] = z.real, z.imag
    return out


def attention(layer, stream, context, c, *, sees=None):
    """Attention on a list of points, or of tangents at the origin."""
    d, tangents = layer.head_dim, layer.stream == "tangents"

    def head(of, x, h, position=None):
        s = linear(of, x)[h * d : (h + 1) * d]
        if layer.rotary_base is not None and position is not None:
            s = turned(s, position, layer.rotary_base)
        return exponential(s / math.sqrt(d), c) if tangents else point(s, c)

    rows = []
    for i, x in enumerate(stream):
        seen = [j for j in range(len(context)) if sees is None or sees(i, j)]
        parts = []
        for h in range(layer.num_heads):
            query = head(layer.query, x, h, i)
            keys = [head(layer.key, context[j], h, j) for j in seen]
            values = [head(layer.value, context[j], h) for j in seen]
            squared = torch.stack([-2 / c - 2 * product(query, key) for key in keys])
            scale = math.sqrt(d) / 2 if tangents else c / math.sqrt(d)
            weights = torch.exp(-scale * squared)
            mean = sum(w * v for w, v in zip(weights / weights.sum(), values, strict=True))
            centre = mean / torch.sqrt(-c * product(mean, mean))
            parts.append(math.sqrt(d) * logarithm(centre, c) if tangents else centre[1:])
        whole = torch.cat(parts)
        rows.append(linear(layer.out, whole if tangents else point(whole, c)))
    return rows


def normed(norm, x, eps=1e-5):
    """RMS norm of coordinates."""
    return x / torch.sqrt(x.dot(x) / len(x) + eps) * norm.weight


def block(layer, points, c, *, memory=None, sees=None):
    """A block on a list of points."""
    tangents = layer.stream == "tangents"
    weights = layer.log_weights.exp()

    def entered(x):
        return logarithm(x, c) if tangents else x

    def norm(i, x):
        return normed(layer.norms[i], x) if tangents else point(normed(layer.norms[i], x[1:]), c)

    def added(i, x, y):
        if tangents:
            return x + weights[i] * y
        y, w = point(y, c), weights[i]
        mean = x + w * y
        return point((1 + w) * mean[1:] / torch.sqrt(-c * product(mean, mean)), c)

    stream = [entered(x) for x in points]
    inner = [norm(0, x) for x in stream]
    found = attention(layer.attention, inner, inner, c, sees=sees)
    stream = [added(0, x, y) for x, y in zip(stream, found, strict=True)]
    if memory is not None:
        inner = [norm(1, x) for x in stream]
        found = attention(layer.cross_attention, inner, [entered(x) for x in memory], c)
        stream = [added(1, x, y) for x, y in zip(stream, found, strict=True)]
    last = len(weights) - 1
    for i, x in enumerate(stream):
        up = layer.up[0] if tangents else layer.up
        hidden = gelu(linear(up, norm(last, x)))
        stream[i] = added(last, x, linear(layer.down, hidden if tangents else point(hidden, c)))
    return torch.stack([exponential(x, c) if tangents else x for x in stream])
