"""The two published levels of the operator set, as lists: canonical ATen, and the primitives below it.

A primitive has a shape rule and, with six exceptions, no decomposition: a backend that implements the primitives runs
every graph. Traced graphs consist of canonical operators before decomposition. No operator of either level writes to an
argument. Importing this file tags the records.
"""

from __future__ import annotations

from . import decompositions as decompositions
from . import shape_rules as shape_rules
from .record import record
from .shape_rules.operands import overloads

PRIMS = """
    abs acos acosh asin asinh atan atanh bitwise_not ceil cos cosh erf erfc exp exp2 expm1 floor isinf
    isnan lgamma log log10 log1p log2 logical_not neg reciprocal relu round rsqrt sigmoid sign signbit sin sinh sqrt tan
    tanh trunc angle
    add.Tensor sub.Tensor mul.Tensor div.Tensor atan2 bitwise_and.Tensor bitwise_or.Tensor bitwise_xor.Tensor
    bitwise_left_shift.Tensor bitwise_right_shift.Tensor copysign.Tensor fmax fmin fmod.Tensor gcd
    hypot igamma igammac logical_and logical_or logical_xor maximum minimum nextafter
    pow.Scalar pow.Tensor_Scalar pow.Tensor_Tensor remainder.Tensor remainder.Scalar_Tensor
    eq.Scalar eq.Tensor ne.Scalar ne.Tensor lt.Scalar lt.Tensor le.Scalar le.Tensor gt.Scalar gt.Tensor ge.Scalar
    ge.Tensor where.self where.ScalarSelf where.ScalarOther where.Scalar complex
    sum.dim_IntList prod prod.dim_int amax amin argmax argmin any.dims all.dims cumsum cumprod logcumsumexp cummax
    cummin max.dim min.dim median median.dim mode kthvalue sort sort.stable topk
    alias as_strided detach diagonal expand permute select.int slice.Tensor split.Tensor split_with_sizes squeeze
    squeeze.dim squeeze.dims t transpose.int unbind.int unfold unsqueeze view view.dtype view_as_complex view_as_real
    _unsafe_view
    _to_copy clone copy cat constant_pad_nd
    arange.start_step empty.memory_format empty_like empty_strided full rand randn randint randint.low
    randperm rand_like randn_like randint_like randint_like.low_dtype bernoulli bernoulli.p multinomial
    normal_functional uniform
    gather index.Tensor _unsafe_index.Tensor index_put scatter.src scatter.value scatter_add scatter_reduce.two
    scatter.reduce scatter.value_reduce index_add index_copy index_reduce put
    searchsorted.Scalar
    mm bmm convolution convolution_backward
    _scaled_dot_product_flash_attention_for_cpu_backward
    max_pool2d_with_indices_backward avg_pool2d_backward
    _adaptive_avg_pool2d_backward
    col2im
    _upsample_bilinear2d_aa _upsample_bicubic2d_aa
    div.Tensor_mode frexp.Tensor lcm histc hash_tensor segment_reduce nanmedian nanmedian.dim special_zeta
    special_hermite_polynomial_h special_hermite_polynomial_he special_laguerre_polynomial_l
    special_legendre_polynomial_p _embedding_bag_forward_only _trilinear
    special_modified_bessel_k0 special_modified_bessel_k1
    special_scaled_modified_bessel_k0 special_scaled_modified_bessel_k1 special_bessel_j0 special_bessel_j1
    special_bessel_y0 special_bessel_y1 special_airy_ai special_ndtri
    _fft_r2c _fft_c2c _fft_c2r _conj_physical linalg_qr _linalg_svd _linalg_eigh linalg_eig linalg_lu_factor_ex
    linalg_lu_solve linalg_cholesky_ex cholesky_solve cholesky_inverse linalg_solve_triangular linalg_ldl_factor_ex
    linalg_ldl_solve linalg_householder_product ormqr linalg_inv_ex _linalg_solve_ex _linalg_det _linalg_slogdet
    linalg_matrix_exp _linalg_check_errors cholesky triangular_solve geqrf
    linalg_lstsq
"""

# Primitives with a partial decomposition, for backends without a lowering. Not covered: half floats (eager rounds the
# indices to them), sets too large to compare pairwise, complex matrices.
PARTLY_MADE_OF_PRIMS = """
    grid_sampler_2d grid_sampler_3d isin.Tensor_Tensor linalg_pinv.atol_rtol_tensor lu_unpack linalg_lu
"""

# Canonical operators that decompose into primitives.
MADE_OF_PRIMS = """
    add.Scalar sub.Scalar mul.Scalar div.Scalar rsub.Tensor rsub.Scalar square addcmul addcdiv lerp.Scalar lerp.Tensor
    div.Tensor_mode div.Scalar_mode floor_divide clamp clamp.Tensor clamp_min clamp_max clamp_min.Tensor
    clamp_max.Tensor deg2rad rad2deg frac sgn logit logaddexp logaddexp2 xlogy.Tensor xlogy.Scalar_Self
    xlogy.Scalar_Other nan_to_num isposinf isneginf heaviside
    gelu silu mish hardswish hardsigmoid hardtanh leaky_relu elu softplus log_sigmoid_forward softshrink hardshrink
    threshold glu _prelu_kernel celu
    gelu_backward silu_backward sigmoid_backward tanh_backward threshold_backward hardsigmoid_backward
    hardswish_backward hardtanh_backward leaky_relu_backward softplus_backward
    sum mean mean.dim var.correction std.correction var_mean.correction std_mean.correction nansum max min aminmax any
    all any.dim all.dim count_nonzero count_nonzero.dim_IntList logsumexp _softmax _log_softmax _safe_softmax
    _softmax_backward_data _log_softmax_backward_data linalg_vector_norm norm.Scalar norm.ScalarOpt_dim
    native_layer_norm native_layer_norm_backward native_group_norm _native_batch_norm_legit_no_training
    _native_batch_norm_legit.no_stats _native_batch_norm_legit_functional _fused_rms_norm
    addmm baddbmm addbmm mv addmv dot addr _scaled_dot_product_flash_attention_for_cpu
    mse_loss mse_loss_backward smooth_l1_loss huber_loss binary_cross_entropy soft_margin_loss nll_loss_forward
    nll_loss2d_forward
    zeros ones zeros_like ones_like full_like new_zeros new_ones new_full scalar_tensor fill.Scalar fill.Tensor arange
    arange.start eye eye.m linspace native_dropout
    stack roll flip repeat repeat_interleave.self_int tril triu masked_fill.Scalar masked_fill.Tensor embedding
    index_select take index_fill.int_Scalar index_fill.int_Tensor diag_embed slice_scatter select_scatter
    as_strided_scatter slice_backward
    select_backward pixel_shuffle pixel_unshuffle channel_shuffle narrow_copy
    upsample_nearest1d upsample_nearest2d upsample_nearest3d _upsample_nearest_exact1d _upsample_nearest_exact2d
    _upsample_nearest_exact3d upsample_linear1d upsample_bilinear2d upsample_trilinear3d _adaptive_avg_pool2d avg_pool2d
    elu_backward mish_backward glu_backward log_sigmoid_backward hardshrink_backward softshrink_backward logit_backward
    _prelu_kernel_backward smooth_l1_loss_backward huber_loss_backward binary_cross_entropy_backward
    soft_margin_loss_backward nll_loss_backward nll_loss2d_backward native_batch_norm_backward
    native_group_norm_backward embedding_dense_backward unfold_backward diagonal_backward
    reflection_pad1d_backward reflection_pad2d_backward reflection_pad3d_backward replication_pad1d_backward
    replication_pad2d_backward replication_pad3d_backward upsample_nearest1d_backward upsample_nearest2d_backward
    upsample_nearest3d_backward _upsample_nearest_exact1d_backward _upsample_nearest_exact2d_backward
    _upsample_nearest_exact3d_backward upsample_linear1d_backward upsample_bilinear2d_backward
    upsample_trilinear3d_backward
    copysign.Scalar fmod.Scalar remainder.Scalar bitwise_and.Scalar bitwise_or.Scalar bitwise_xor.Scalar
    digamma erfinv i0 polygamma mvlgamma sinc special_i0e special_i1 special_i1e special_entr special_erfcx
    special_log_ndtr special_modified_bessel_i0
    special_modified_bessel_i1 special_spherical_bessel_j0
    special_xlog1py special_chebyshev_polynomial_t special_chebyshev_polynomial_u special_chebyshev_polynomial_v
    special_chebyshev_polynomial_w special_shifted_chebyshev_polynomial_t special_shifted_chebyshev_polynomial_u
    special_shifted_chebyshev_polynomial_v special_shifted_chebyshev_polynomial_w round.decimals
    floor_divide.Scalar linalg_cross trace vdot dist renorm rot90 _cdist_forward _pdist_forward tril_indices
    triu_indices block_diag _chunk_cat diagonal_scatter masked_scatter nonzero_static isin.Tensor_Scalar
    bucketize.Tensor searchsorted.Tensor unsafe_split.Tensor unsafe_split_with_sizes empty_permuted
    native_dropout_backward _unsafe_masked_index logspace linspace.Tensor_Tensor linspace.Tensor_Scalar
    linspace.Scalar_Tensor logspace.Tensor_Tensor logspace.Tensor_Scalar logspace.Scalar_Tensor
    binary_cross_entropy_with_logits multi_margin_loss multilabel_margin_loss_forward
    _adaptive_avg_pool3d adaptive_max_pool2d adaptive_max_pool3d avg_pool3d max_pool2d_with_indices
    max_pool3d_with_indices max_unpool2d max_unpool3d im2col reflection_pad1d reflection_pad2d reflection_pad3d
    replication_pad1d replication_pad2d replication_pad3d upsample_bicubic2d new_empty new_empty_strided polar
    _unsafe_index_put _unsafe_masked_index_put_accumulate
"""

for _target in overloads(PRIMS + PARTLY_MADE_OF_PRIMS):
    record(_target).tags |= {"prim", "canonical"}
for _target in overloads(MADE_OF_PRIMS):
    record(_target).tags |= {"canonical"}
